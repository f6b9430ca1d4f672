"""Commands of ``stoker`` that this package brings; entry points name them."""
