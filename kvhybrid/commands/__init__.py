"""The verbs of the command line, one per file: each has ``main(arguments) -> exit code``."""
