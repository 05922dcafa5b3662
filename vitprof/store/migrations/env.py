"""What Alembic runs before the migrations: it is given the connection, in whose transaction they stay."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
