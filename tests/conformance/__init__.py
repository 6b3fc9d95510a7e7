"""An independent client of the iSwitch protocol and the cases a switch is judged by.

Everything here is written from the protocol page and imports nothing of this project, so that
page and switch are tested against each other and not against themselves. Section numbers in the
cases are those of the page.
"""
