"""What `understudy plan` prints, and a learning curve in a line."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # whoever shows a run should not wait for what reads prompts
    from pipeline.forecast import Forecast


def print_forecast(found: "Forecast", curve: Mapping[str, Any] | None) -> None:
    """To stdout. What is asked is an upper bound but for the chance of the splits."""
    splits = ", ".join(f"{count:,} {split}" for split, count in found.prompts.items())
    print(f"corpus: {found.rows:,} rows, so about {splits} prompts, less what is rejected or there twice")
    for asked in found.generate:
        print(
            f"{asked.job}: up to {asked.completions:,} completions, {asked.tokens:,} tokens of the target, "
            f"{asked.stored_bytes / 1e6:,.1f} MB at {found.bytes_per_token} bytes a token"
        )
    if found.first_turns_only:
        print("chats asked turn by turn are counted with their first question; those that go on ask more")
    print(f"distill: {found.training_rows:,} rows of completions in all steps together")
    if curve is not None:
        print(curve_text(curve))


def curve_text(curve: Mapping[str, Any]) -> str:
    """On dev prompts; the reader decides whether the target is worth asking again."""
    points = ", ".join(f"{point['dev_acceptance']:.3f} from {point['completions']:,}" for point in curve["points"])
    text = f"learning curve, acceptance on dev by completions: {points}"
    gain = curve["next_doubling"]
    return text if gain is None else f"{text}; twice as many would add about {100 * gain:.1f} points"
