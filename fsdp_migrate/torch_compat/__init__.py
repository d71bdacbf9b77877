"""The only package that asks which torch this is, or touches its privates.

Checked against torch 2.6 to 2.15. Where torch has a public way, that is used; each private that is read says
what it was checked on.
"""
