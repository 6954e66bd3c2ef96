"""Reporting: what people look at. Functions here make text and tables, and print nothing themselves."""
