"""Operations over all engaged hosts: searches, entries that move, subscriptions, sessions."""
