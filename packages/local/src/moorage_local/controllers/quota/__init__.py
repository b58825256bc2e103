"""ResourceQuotas: what is used of them, counted anew when objects end."""
