"""Quotas of users: what each has used of this broker, and how it is kept within its bounds."""
