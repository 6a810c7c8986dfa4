"""The lab: replay, curve, optimum, doctor, pictures, lessons."""
