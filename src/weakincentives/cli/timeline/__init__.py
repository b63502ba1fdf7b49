"""Commands that look at the steps of a recorded run, and start again from them."""
