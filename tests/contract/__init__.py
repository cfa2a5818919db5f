"""The database as a public interface: the table, strangers, fences, plans, migrations."""
