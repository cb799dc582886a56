"""Composition: the words of a command line become components that fit each other.

A word is looked up in `catalogue`, its keys are checked in `key_check`, its values in `binding`; a
mistake is put into words by `explain`. `build` does all of it, and loads what was named.
"""
