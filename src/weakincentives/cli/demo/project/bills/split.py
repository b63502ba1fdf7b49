"""Splitting of a bill."""


def shares(total: int, people: int) -> list[int]:
    """Return the share of each person in cents; the shares add up to `total`."""
    if people < 1:
        raise ValueError(f"A bill needs at least one person: {people}")
    return [total // people] * people
