"""What ``make figures`` runs."""

from tests.bench.__main__ import PAGE, commands

PAGE_OF_TWO = """# Figures
## Here (root; see --help)
| what | command | code |
| --- | --- | --- |
| a | `make a` | 1 |
## There
| what | command | code |
| --- | --- | --- |
| b | `make b` | 1 |
| c | `make b` | 2 |

# Measured apart
| what | command | code |
| --- | --- | --- |
| d | `make d` | 1 |
"""


def test_each_command_of_the_first_part_is_run_once_and_those_for_root_by_root() -> None:
    assert list(commands(PAGE_OF_TWO, root=True)) == ["make a", "make b"]
    assert list(commands(PAGE_OF_TWO, root=False)) == ["make b"]


def test_the_page_names_its_commands() -> None:
    found = list(commands(PAGE.read_text(encoding="utf-8"), root=True))
    assert "make demo" in found
    assert any(command.startswith("python -m tests.bench.homelines ") for command in found)
