"""What simulations with real executors share."""

import pytest

from tests.support.tensor_swarms import Lab, write_text


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("lab")
    return Lab(folder, write_text(folder))
