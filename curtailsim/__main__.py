"""`python -m curtailsim`."""

from curtailsim.cli import app

app(prog_name="python -m curtailsim")
