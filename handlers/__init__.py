"""Handlers that come with jobpool: one file for each family, none imported before it is named."""
