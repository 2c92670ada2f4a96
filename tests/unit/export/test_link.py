"""The link that servers start from."""

from pathlib import Path

import pytest

from pipeline.config.promote import ExportConfig
from pipeline.errors import UnderstudyError
from pipeline.export.link import linked_directory, point_link


def test_the_link_points_to_one_version_or_to_none(tmp_path: Path) -> None:
    """It is replaced and removed; what a killed process has left beside it goes too."""
    settings = ExportConfig(engine="vllm", out=str(tmp_path))
    assert linked_directory(settings) is None
    for version in ("version-1", "version-2"):
        (tmp_path / version).mkdir()
        (tmp_path / ".champion.abc.partial").symlink_to("version-1")
        point_link(settings, tmp_path / version)
        assert version == (tmp_path / "champion").readlink().name
        assert tmp_path / version == linked_directory(settings)
    point_link(settings, None)

    assert linked_directory(settings) is None
    assert ["version-1", "version-2"] == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize("wanted", ["version-1", None])
def test_something_else_in_its_place_is_left_alone(tmp_path: Path, wanted: str | None) -> None:
    """A directory of the user."""
    (tmp_path / "champion").mkdir()
    with pytest.raises(UnderstudyError, match="not a symlink, refusing to replace it"):
        point_link(ExportConfig(engine="vllm", out=str(tmp_path)), tmp_path / wanted if wanted else None)
    assert (tmp_path / "champion").is_dir()
