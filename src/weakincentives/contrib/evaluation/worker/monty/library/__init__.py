"""Modules that Monty lacks, in the Python that it understands.

Each is compiled in the interpreter when code imports it, so it must not use generators, class
inheritance, `del` or decorated methods. They behave like the modules of the standard library.
"""
