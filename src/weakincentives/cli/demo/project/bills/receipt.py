"""The receipt of a bill."""

from bills.money import format_cents
from bills.split import shares


def receipt(total: int, names: list[str]) -> str:
    """Return one line per person, with the amount to pay."""
    amounts = shares(total, len(names))
    return "\n".join(
        f"{name:<10}{format_cents(amount):>8}" for name, amount in zip(names, amounts, strict=True)
    )
