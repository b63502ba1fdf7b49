"""The program of workers that run code in Monty; imported only there."""
