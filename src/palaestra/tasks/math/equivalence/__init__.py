"""Whether two mathematical answers are equal: parsing, exact numbers, symbolic comparison."""
