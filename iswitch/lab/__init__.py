"""Everything that starts, measures or shows; the product needs none of it."""
