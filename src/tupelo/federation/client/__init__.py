"""The client, blocking and async: channels, remote spaces and their handles, services."""
