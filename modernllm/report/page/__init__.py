"""One HTML file that answers which arm is better, how sure that is and why, and lets the reader dig.

reading -> arms -> ranking -> answer; tables, figures and confounders from the same records; `page` puts them together.
"""
