"""Operations on nodes and machines."""
