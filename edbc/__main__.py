"""`python -m edbc`."""

from edbc.tools.cli import main

main()
