"""Worker processes: starting them, and sending data to them.

Workers import these modules, so they import little.
"""
