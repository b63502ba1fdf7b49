"""The program of workers that run code in asteval; imported only there."""
