"""Pictures whose truth is known: shapes, drawn layers, photographs, and a camera over them."""
