"""Tests of bills."""

import unittest

from bills.money import cents
from bills.receipt import receipt
from bills.split import shares


class TestBills(unittest.TestCase):
    """A bill is paid in full, and fairly."""

    def test_no_cent_is_lost(self) -> None:
        """The shares add up to the bill."""
        self.assertEqual(sum(shares(cents("10.00"), 3)), cents("10.00"))

    def test_nobody_pays_more_than_a_cent_extra(self) -> None:
        """Shares differ by at most one cent."""
        amounts = shares(cents("10.00"), 3)
        self.assertLessEqual(max(amounts) - min(amounts), 1)

    def test_the_receipt_names_everybody(self) -> None:
        """Each person has a line."""
        self.assertEqual(receipt(cents("9.00"), ["Ada"]), "Ada           9.00")


if __name__ == "__main__":
    unittest.main()
