"""One module per group of cases, each with a list CASES; all_cases.py has them all."""
