"""The receipt that is handed round."""

from bills.money import shown
from bills.split import shares


def receipt(total: int, names: list[str]) -> str:
    """Return one line for each name, with what that person pays."""
    amounts = shares(total, len(names))
    return "\n".join(
        f"{name:<10}{shown(amount):>8}" for name, amount in zip(names, amounts, strict=True)
    )
