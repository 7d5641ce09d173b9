"""`python -m edbc`."""

from edbc.cli import main

main()
