"""What the answers on BENCHMARKS.md share."""

Answer = tuple[str, str]  # what was found, and what it is compared with


def missed(sentence: str, missed: bool) -> str:
    return f" **Missed**: {sentence}" if missed else ""


def interval(found: dict[str, float]) -> str:
    return f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"
