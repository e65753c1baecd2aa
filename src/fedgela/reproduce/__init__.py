"""The paper's cells run, kept in a ledger, and shown beside the paper's numbers."""
