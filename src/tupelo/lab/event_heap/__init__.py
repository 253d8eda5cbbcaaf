"""Event heaps in virtual time: their hosts part, crash and meet again, and a judge looks at it."""
