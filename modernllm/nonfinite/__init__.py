"""Where a number stopped being finite: a step done again, operator by operator, and kept so that others can do it too.

A step that changed nothing can be repeated: its batch follows from its number, its weights are still there, and the
generators are put back to where they stood.
"""
