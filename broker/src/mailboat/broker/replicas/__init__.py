"""The replicas of a group: who is linked to whom, and what the state machine's actions do here."""
