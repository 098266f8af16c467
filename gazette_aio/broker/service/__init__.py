"""One module for each kind of request. None of them knows how requests arrive."""
