"""Worker processes: starting them, and what is sent to them.

Workers import these modules, so they import little.
"""
