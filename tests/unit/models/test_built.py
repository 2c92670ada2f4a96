"""Models without memory for their weights: built once for those who only read them."""

from pathlib import Path

from pipeline.models.built import empty_model, read_only_empty_model
from pipeline.models.shape import measure_weights
from tests.fakes import tiny_llama


def test_models_of_equal_configs_are_one_object(tmp_path: Path) -> None:
    """Wherever they lie. Those of another config, or that somebody may change, are objects of their own."""
    for name, layers in (("one", 1), ("same", 1), ("two", 2)):
        tiny_llama(layers=layers).save_pretrained(tmp_path / name)
    one, same, two = (read_only_empty_model(tmp_path / name) for name in ("one", "same", "two"))

    assert one is same
    assert one is not two
    assert empty_model(tmp_path / "one") is not one
    assert read_only_empty_model(tmp_path / "one", trust_remote_code=True) is not one


def test_a_config_that_changed_is_built_again(tmp_path: Path) -> None:
    """In the same directory, in the same process."""
    found = []
    for layers in (1, 2):
        tiny_llama(layers=layers).save_pretrained(tmp_path)
        found.append(measure_weights(tmp_path).parameters)

    assert found[0] < found[1]
