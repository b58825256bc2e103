"""The usage of ResourceQuotas, counted again when objects end."""
