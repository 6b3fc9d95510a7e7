"""How policies of a switch share its memory among jobs: played, compared, drawn."""
