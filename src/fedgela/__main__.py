"""`python -m fedgela`, where the command itself is not on the path."""

from fedgela.cli import main

if __name__ == "__main__":
    main()
