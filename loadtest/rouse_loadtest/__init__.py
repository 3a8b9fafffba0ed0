"""Measuring Rouse: scenarios that print what they measured, what with, and whether it is good enough."""
