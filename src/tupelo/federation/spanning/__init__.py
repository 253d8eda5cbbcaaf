"""What spans hosts: searches, hand-over, entries that move, subscriptions."""
