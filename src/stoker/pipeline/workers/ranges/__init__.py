"""Ranges of samples that one worker reads: a source of them for each way to divide work among workers."""
