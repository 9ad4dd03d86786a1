"""A contract of import-linter: no cycle in the import graph of files.

The files of a cycle can only be understood, tested and moved together. An import counts wherever it
stands: in a function and under ``TYPE_CHECKING`` as well.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output

Import = tuple[str, str]
"""(importer, imported): names of two modules."""


def cycles(graph: ImportGraph) -> list[list[Import]]:
    """Return cycles that share no import; without the imports of all of them there is none.

    Each begins with the module whose name comes first, and each import leads to the next one's
    importer.
    """
    imports = {
        module: sorted(graph.find_modules_directly_imported_by(module))
        for module in sorted(graph.modules)
    }
    found = []
    while cycle := _any_cycle(imports):
        found.append(cycle)
        for importer, imported in cycle:
            imports[importer].remove(imported)
    return found


def _any_cycle(imports: dict[str, list[str]]) -> list[Import]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        # Each is imported by the next one, and the last one is the first one.
        modules = error.args[1][:0:-1]
        first = modules.index(min(modules))
        modules = modules[first:] + modules[:first]
        return list(zip(modules, modules[1:] + modules[:1], strict=True))
    return []


class NoCycles(Contract):
    """See the module's docstring."""

    type_name = "no_cycles"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Look for cycles; the metadata holds their imports."""
        described = [[_described(graph, *step) for step in cycle] for cycle in cycles(graph)]
        return ContractCheck(kept=not described, metadata={"cycles": described})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print every cycle, an import a line, and what to do."""
        for steps in check.metadata["cycles"]:
            output.print_error(f"A cycle of {len(steps)} files:")
            output.new_line()
            for step in steps:
                output.indent_cursor()
                output.print_error(step, bold=False)
            output.new_line()
        output.print("Move what both sides need to a file below them, or pass it as an argument.")
        output.new_line()


def _described(graph: ImportGraph, importer: str, imported: str) -> str:
    lines = graph.get_import_details(importer=importer, imported=imported)
    stands = "; ".join(f"line {line['line_number']}: {line['line_contents']}" for line in lines)
    return f"{importer} -> {imported} ({stands})"
