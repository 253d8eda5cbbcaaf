"""Many hosts seen as one space: links, hosts, presence, hand-over, identity."""
