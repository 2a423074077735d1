"""``metadctl``: manages a cluster and its records from a shell."""


def main() -> int:
    """Run the command of this process, and return its exit status. It is loaded only now: programs use parts of it."""
    from .command_line import main as run

    return run()
