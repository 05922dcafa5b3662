"""A server of the Model Context Protocol: an agent's tools over the run store and the command line.

`reading` answers from the store, `acting` runs commands in child processes (`children`), `access` says
what is allowed, `results` has what the tools return, and `server` puts them together. Needs the package
`mcp`: the extra `mcp`.
"""
