"""The verbs of the command line, one a file: each has ``main(arguments) -> exit code``."""
